"""FDML's trusted part, small enough to be read in one sitting: numpy, cryptography and the standard library only."""
