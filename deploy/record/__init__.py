"""One record of every act of every room, in one hash chain."""
