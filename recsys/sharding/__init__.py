"""Where tables lie: config -> TorchRec plan, the Lightning strategy over it, sharded checkpoints."""
