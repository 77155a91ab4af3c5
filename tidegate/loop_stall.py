"""Loop stall: how late the event loop wakes a task that asked for a time.

Everything on the loop is late by as much, so this one number shows a blocking call, a long computation or a machine
with too little processor before a client does. The same task counts the loop's tasks.
"""

import trio

from metrics.process_meters import LoopMeter
from tidegate.log_lines import lines_lost

INTERVAL_S = 0.1
"""Ten wakings a second cost some 0.1 % of a core; a stall shorter than this may fall between two of them."""


async def watch_loop(meter: LoopMeter, interval_s: float = INTERVAL_S) -> None:
    """Measure lateness and count tasks for ever; run it in the application's nursery.

    Cancellation: at any time.
    """
    lost_before = 0
    while True:
        due = trio.current_time() + interval_s
        await trio.sleep_until(due)
        meter.on_woken(max(0.0, trio.current_time() - due))
        lost = lines_lost()
        meter.on_log_lines_lost(lost - lost_before)
        lost_before = lost
        meter.on_tasks(trio.lowlevel.current_statistics().tasks_living)
