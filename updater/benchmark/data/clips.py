"""Which files of CDDB's layout are frames of one clip: they are one group, never on both sides of a split.

- A folder below 0_real or 1_fake is one clip, in every task: 1_fake/CLIP/FRAME.png.
- In the tasks that come from videos, what a file's name says before its last number: CLIP_FRAME.png. In other
  tasks such names count images, or begin with a class, as ImageNet's do: there each file stands alone.
- FaceForensics++ names a forged clip TARGET_SOURCE. It shows what the real clip TARGET shows: they are one.

A clip is one of its task and object class, real and fake alike: a fake is often made from the real clip of
the same name. A name that is one word, whether with a number or not, says no clip.
"""

import re
from pathlib import PurePosixPath

_FRAME = re.compile(r"(.+?)(?:[ ._-]+(?:frame[ ._-]*)?|frame[ ._-]*)\d+", re.IGNORECASE)
_TARGET_AND_SOURCE = re.compile(r"(\d+)[_-]\d+")


def clip_of(file: PurePosixPath, *, of_videos: bool, face_swaps: bool) -> str | None:
    """Return the clip that a file is a frame of, by its path below 0_real or 1_fake; None where it is none.

    of_videos: whether the task's images are frames of videos. face_swaps: whether forged clips are named by
    target and source.
    """
    clip = None
    if len(file.parts) > 1:
        clip = file.parent.as_posix()
    elif of_videos and (named := _FRAME.fullmatch(file.stem)):
        clip = named[1]
    if clip is not None and face_swaps and (both := _TARGET_AND_SOURCE.fullmatch(clip)):
        clip = both[1]
    return clip
