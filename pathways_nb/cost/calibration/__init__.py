"""From measured seconds to a model of this machine, with the error of each class.

This package fits and does not measure: ``pathways_nb.calibration`` measures. So fits are tested on numbers with known
answers, without devices. ``calibration``, ``attach`` and ``bench`` may import it.
"""
