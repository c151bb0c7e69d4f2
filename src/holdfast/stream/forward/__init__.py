"""Data that can only be read forwards: streamed Hugging Face datasets, and mixtures that hold some.

Which sample comes at a position cannot be computed here, so ``StreamingShardLoader`` does not read these; torch's
``DataLoader`` and torchdata's ``StatefulDataLoader`` do. Every process (rank × worker) reads its own part and has its
own state, resumed exactly; ``merge_states`` makes of all processes' states one that any other number of them can load.

Read ``base``, then ``hf_streaming`` with ``shard_queue`` (a stream's shards), then ``mixture`` with ``position_queue``.
"""
