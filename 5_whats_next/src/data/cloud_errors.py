"""What goes wrong between here and a store: what to try again, and what to say."""

import errno

from aiohttp import ClientError as HTTPError
from botocore.exceptions import BotoCoreError, NoCredentialsError, PartialCredentialsError

from src.errors import UserError

FOR_GOOD = {errno.EINVAL, errno.EPERM, errno.EACCES, errno.ENOENT, errno.ENOSYS, errno.EISDIR}
FOR_GOOD |= {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
BUSY = {"408", "429", "500", "502", "503", "504"}  # what gcsfs leaves of an answer


class CloudError(UserError):
    """What went wrong between here and the store, in one line.

    A DataLoader builds a worker's error anew, from a text that ends with the original one.
    """

    def __init__(self, message: str) -> None:
        _, found, original = message.rpartition(f"{type(self).__name__}: ")
        super().__init__(original.strip() if found else message)


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed in a moment: the server is busy, the network broken."""
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return False
    if isinstance(error, OSError):
        # Those of s3fs have a type, but not all of them a number.
        return error.errno not in FOR_GOOD and not isinstance(
            error, PermissionError | FileNotFoundError
        )
    busy = str(getattr(error, "code", "")) in BUSY
    return busy or isinstance(error, BotoCoreError | HTTPError | TimeoutError)


def explain(error: BaseException, limit: float = 10.0) -> str:
    """What a user can do about it, in a few words and without any credentials."""
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return (
            "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, see .env.example; "
            "a public store needs anonymous: true"
        )
    if isinstance(error, PermissionError):
        return "access denied: wrong credentials, or no right to do this here"
    if isinstance(error, TimeoutError):
        return f"no answer within {limit:.0f} s"
    text = str(error) or type(error).__name__
    return " ".join(text.split())
