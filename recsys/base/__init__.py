"""What every room may use: errors, the console, secrets, interrupts, ranges of settings; no torch, no polars."""
