"""Pictures of pipeline schedules: live, still, and with more boxes than a browser draws at once.

Nothing here makes or times a schedule.
"""
