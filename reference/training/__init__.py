"""Recipes that train the twin's own modules into one small checkpoint, from synthetic speech alone.

    python -m reference.training.run_all --help        everything, in order, on as many GPUs as there are
    python -m reference.training.data --help           one step; likewise codec, perception, talker, duplex, export

README.md in this folder tells the whole story; every step has a settings file in settings/full and settings/smoke.
"""
