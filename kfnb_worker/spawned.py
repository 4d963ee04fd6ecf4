"""Run as `__mp_main__` by the children of a spawn, in place of the cell.

execute.run names this module in `__main__.__spec__`. Its globals become the child's `__main__`, so it keeps no names of
its own.
"""

if __name__ == "__mp_main__":
    __import__("kfnb_worker.definitions", fromlist=["populate"]).populate(globals())
