"""Fetching remote files ahead of their reading: which blocks will be wanted, and getting each of them once.

A remote file is a row of blocks. ``Fetcher`` holds the blocks that are wanted, the most urgent first, and a few threads
get them: from this machine's cache where they are there, else over a ``Transport``. ``Pace`` measures how many requests
at a time pay off and when one is late; ``SharedBlocks`` keeps the processes of a machine from fetching the same block.
"""
