"""python -m recsys.models: see recsys/sweep/model_list.py."""

import sys

from recsys.sweep.model_list import run as main

if __name__ == "__main__":
    sys.modules["sklearn"] = None  # type: ignore[assignment]  # LightGBM imports it for a second, unused here
    main()
