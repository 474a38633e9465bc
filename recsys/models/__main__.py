"""python -m recsys.models: see recsys/model_list.py."""

from recsys.model_list import run as main

if __name__ == "__main__":
    main()
