"""All graphs of a release in this process, as TorchServe's worker has them: each answers what it takes."""

from detector.release.artifact import Artifact
from detector.release.tensors import ModelOutput, Request
from detector.serving.map_session import open_map_session
from detector.serving.scan_session import open_scan_session
from detector.serving.session import open_session


class ReleaseSession:
    """The detector, and the localizer and the scanner where the release has them."""

    def __init__(self, artifact: Artifact, threads: int, gpu: int | None = None) -> None:
        """Load them. Raises TensorsError where one is not what the manifest declares."""
        self._detector = open_session(artifact, threads, gpu)
        others = (open_map_session(artifact, threads, gpu), open_scan_session(artifact, threads, gpu))
        self._others = [one for one in others if one is not None]

    def score(self, request: Request) -> ModelOutput:
        """Let the graph answer that takes arrays of these names; the detector's refuses all others.

        Raises TensorsError.
        """
        for session in self._others:
            if request.keys() == {one.name for one in session.contract.inputs}:
                return session.score(request)
        return self._detector.score(request)
