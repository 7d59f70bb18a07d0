"""Noise on what participants are sent (`mechanisms`), what noise is worth (`accountant`), masked sums (`fixed`)."""
