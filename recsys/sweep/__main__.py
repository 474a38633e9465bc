"""python -m recsys.sweep"""

from recsys.sweep.command import main

if __name__ == "__main__":
    main()
