"""Pictures of pipeline schedules: live, still, and with more boxes than a browser can draw one by one.

Schedules are made and timed in ``pathways_nb.parallel.schedules``, never here. Only ``explorers`` may import this
package; ``pathways_nb`` imports it when a schedule is shown.
"""
