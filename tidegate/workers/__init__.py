"""More than one core: a supervisor that accepts, workers that serve (`proxy.workers`).

Read `assignment` first. With one worker nothing of this room runs: the process is `tidegate.serve`'s.
"""
