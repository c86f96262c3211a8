"""What can go wrong, by whose trouble it is. The text says what happened, where (file and line of the call), to whom, and what to do.

After ``MisuseError``, ``UnsupportedError``, ``NoMessageError`` and ``ObjectError`` nothing was sent and the group works on. After the others the group is
poisoned: the buffers of that call hold anything, and later calls raise ``PoisonedError`` with the first cause.
"""


class Error(RuntimeError):
    """Any error of phalanx's. What a program may want to know of it are attributes, ``None`` where the error has no such thing:

    ``op`` (the operation), ``site`` (file and line of this rank's call), ``rank`` (this rank of the job), ``peer`` and ``host`` (the culprit), ``how`` (it was
    lost), ``peers`` and ``sites`` (ranks that disagree, and where they called), ``missing`` (ranks that had not come), ``reason`` (of an abort).
    """

    op = site = rank = peer = host = how = peers = sites = missing = reason = None
    #: Whether the group can still be used after this error.
    group_is_usable = False

    def __init__(self, text, **fields):
        super().__init__(text)
        self.__dict__.update(fields)

    def __reduce__(self):
        return _again, (type(self), self.args, self.__dict__)


def _again(kind, args, fields):
    """An error that was pickled, as by a pool of processes."""
    return kind(*args, **fields)


class MisuseError(Error, ValueError):
    """The caller asked for something impossible. Nothing was sent."""

    group_is_usable = True


class UnsupportedError(Error, NotImplementedError):
    """What performs the group's operations can't do this one. Nothing was sent."""

    group_is_usable = True


class NoMessageError(Error):
    """No message came within the timeout that ``recv`` or ``recv_any`` was given. It may still come."""

    group_is_usable = True


class PeerLostError(Error):
    """A rank died, left, or cannot be reached: ``peer``, on ``host``."""


class TimeoutError(Error, TimeoutError):
    """The operation did not end in time. ``missing``: the ranks that had not come, as far as is known."""


class DeadlockError(Error):
    """Ranks wait for each other in a circle."""


class MismatchError(Error):
    """Two ranks called different operations, or one with other types, lengths or roots: ``peers``, at ``sites``. No data was mixed."""


class ProtocolError(Error):
    """A peer sent what no correct peer sends."""


class AbortedError(Error):
    """A rank aborted the group, or ended by an exception: ``peer``, for ``reason``."""


class PoisonedError(Error):
    """The group failed earlier. The text says what the first cause was."""


class RendezvousError(Error):
    """The ranks did not find each other in time."""


class WrongSumError(Error):
    """The self-test of ``init`` got a wrong sum: no result of this machine, or of the way to another, can be trusted."""


class ConfigError(Error):
    """The environment, or an argument that takes its place, makes no sense."""


class UnavailableError(Error):
    """Something that this machine does not have."""


class LibraryError(Error):
    """A library below phalanx failed or refused."""


class IoError(Error, OSError):
    """The operating system refused."""

    def __init__(self, text, **fields):
        Error.__init__(self, text, **fields)

    def __str__(self):
        return self.args[0]


class ObjectError(Error):
    """An object could not be encoded or decoded, or is over the limit. The group is fine."""

    group_is_usable = True


class TrainingError(Error):
    """The models of the ranks differ, or their shares of a batch do not make one, or no rank has a gradient where one must be. The group is fine."""

    group_is_usable = True


class InternalError(Error):
    """A bug in phalanx. Please report it."""
