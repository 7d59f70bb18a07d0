"""What participants are sent in FDML, made noisy (`mechanisms`), and what that noise is worth (`accountant`)."""
