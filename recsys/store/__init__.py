"""Features of entities, such as users: their latest values online, and their values at a time for training sets."""
