"""What JupyterLab may write in a clone: the reader's folder, and nothing of the repository."""

from pathlib import Path
from typing import Any

from jupyter_server.services.contents.filecheckpoints import AsyncFileCheckpoints
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from tornado.web import HTTPError
from traitlets import default

from flashcore_numba.course.session.lab import FOLDER


class Checkpoints(AsyncFileCheckpoints):
    """Keeps the last saved state of each file below the reader's folder, not beside the file."""

    @default("root_dir")
    def _readers_folder(self) -> str:
        assert self.parent is not None  # the contents manager
        return str(Path(self.parent.root_dir, FOLDER, ".checkpoints"))

    def checkpoint_path(self, checkpoint_id: str, path: str) -> str:
        """The file's place. Its folder is made first: without one, Jupyter takes one that all users share."""
        parent = path.strip("/").rpartition("/")[0]
        with self.perm_to_403():
            Path(self._get_os_path(parent)).mkdir(parents=True, exist_ok=True)
        return super().checkpoint_path(checkpoint_id, path)


class Contents(AsyncLargeFileManager):
    """Shows the whole clone; only files of the reader's folder can be changed."""

    checkpoints_class = Checkpoints

    def is_writable(self, path: str) -> bool:
        """Whether a file can be changed: JupyterLab opens the others as read-only."""
        return path.strip("/").split("/")[0] == FOLDER and super().is_writable(path)

    async def save(self, model: dict[str, Any], path: str = "") -> dict[str, Any]:
        _only_the_readers(path)
        return await super().save(model, path)

    async def rename_file(self, old_path: str, new_path: str) -> None:
        _only_the_readers(old_path)
        _only_the_readers(new_path)
        await super().rename_file(old_path, new_path)

    async def delete_file(self, path: str) -> None:
        _only_the_readers(path)
        await super().delete_file(path)


def _only_the_readers(path: str) -> None:
    if path.strip("/").split("/")[0] != FOLDER:
        raise HTTPError(403, reason=f"{path} belongs to the repository: files in {FOLDER}/ can be changed")
