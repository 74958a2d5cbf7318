"""Video files read and written by FFmpeg (PyAV), for distortions that are codecs and for those of files."""
