"""Sharding of embedding tables: TorchRec plans, the Lightning strategy that uses them, sharded checkpoints."""
