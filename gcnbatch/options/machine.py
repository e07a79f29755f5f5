"""Parameters of ``kernels build``."""

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated

from gcnbatch.fileio import StrPath
from gcnbatch.options.common import Progress
from gcnbatch.options.declaration import Python, declaration, option


@declaration
class BuildKernelsOptions:
    """``gcnbatch kernels build``."""

    architectures: Sequence[str] | None = option(
        "Architecture; may be repeated.",
        "--arch",
        default=None,
        metavar="sm_XY",
        shown="the devices here",
        typed=list[str],
        doc='Such as ``["sm_80", "sm_90"]``; None: those of the devices here.',
    )
    _: KW_ONLY
    folder: Annotated[StrPath | None, Python("Of the cache; None: the user's.")] = None
    progress: Progress = False
