"""What a recording leaves: runs, their files, and two of them compared.

Nothing here needs the devices any more.
"""
