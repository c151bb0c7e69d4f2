"""Data that can only be read forwards: streamed Hugging Face datasets, and mixtures that contain some.

The sample at a position cannot be computed here, so ``StreamingShardLoader`` does not read these; torch's
``DataLoader`` and torchdata's ``StatefulDataLoader`` do. Every process (rank × worker) reads its own part and has its
own state, resumed exactly; ``merge_states`` merges all processes' states into one that any number of them can load.

Read ``base``, then ``hf_streaming`` with ``shard_queue`` (a stream's shards), then ``mixture`` with ``position_queue``.
"""
