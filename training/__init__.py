"""Inside a rank: the trainer, the generation arms, the phase clock and the run record. Started by `launch`."""
