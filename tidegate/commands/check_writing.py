"""The part of `check` that tries what a copier asks of the store: an object of `check`'s own, and an upload of it.

Without PUT and multipart uploads nothing is copied. What else is missing is a warning that says what follows from it
(docs/operate/secure.md#the-bucket).
"""

from collections.abc import Callable

from storage.errors import RemoteStorageError
from storage.formats.tier_folder import StaleUpload, TierFolder
from storage.object_store.object_store import LIFECYCLE_HINT
from tidegate.commands.report import Report

_CONTENT = b"tidegate check has put this object, to see whether it may; delete it\n"


def check_writing(folder: TierFolder, report: Report) -> None:
    """Blocking. Leaves nothing, as far as the store allows; what stays is named."""
    name = folder.trial_name
    begun: list[StaleUpload] = []

    def write() -> None:
        folder.put(name, _CONTENT)
        begun.extend(folder.begin_upload(name))

    def give_up() -> None:
        for upload in begun:
            folder.abort(upload)

    def list_uploads() -> None:
        next(folder.uploads(), None)

    if _is_done(write, folder, report.wrong, "the store cannot be written to, so nothing is copied"):
        report.ok("the store takes objects and uploads in parts")
    _is_done(give_up, folder, report.warning, f"an upload of {name} stays: {LIFECYCLE_HINT}")
    unseen = "unfinished uploads cannot be listed, so `tidegate gc` leaves them alone"
    _is_done(list_uploads, folder, report.warning, unseen)
    kept = f"objects cannot be deleted: copying goes on, what retention has to delete stays, and so does {name}"
    _is_done(lambda: folder.delete([name]), folder, report.warning, kept)


def _is_done(call: Callable[[], None], folder: TierFolder, tell: Callable[[str], None], otherwise: str) -> bool:
    try:
        call()
    except RemoteStorageError as error:
        tell(f"{otherwise}: {folder.words(error)}")
        return False
    return True
