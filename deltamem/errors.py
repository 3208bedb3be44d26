"""The one exception type whose message is meant for the person at the keyboard."""


class DeltaMemError(Exception):
    """Bad input or a missing resource, told in one sentence.

    The sentence names the file, line or key and says what was expected. Commands print it without a stack trace and exit
    with code 2.
    """


class NotFoundError(DeltaMemError):
    """What was named is not there: a memory, a session, a job, an owner."""


class ConflictError(DeltaMemError):
    """What was asked for contradicts what is stored already."""


class StorageError(DeltaMemError):
    """A file of a store cannot be read or written for now: a full disk, a lock that somebody else holds, damage."""


class EmbedderUnavailableError(DeltaMemError):
    """An embedding model is neither installed nor in the local cache; the message says which command fetches it."""


class LLMError(DeltaMemError):
    """A model's endpoint gave no usable answer, after the retries; the sentence names endpoint, model and reason."""


class ContextLengthError(LLMError):
    """The messages and the room for the answer do not fit the model's context window."""


def reason_of(error: Exception) -> str:
    """What to tell of an error in one sentence: what it says itself, after its name unless it is one of ours."""
    return str(error) if isinstance(error, DeltaMemError) else f"{type(error).__name__}: {error}"
