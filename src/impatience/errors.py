"""Defines all errors of the package.

Each message says what was wrong, what is accepted, and what to do. The tree:

    ImpatienceError
    ├── UnknownNameError    a name no registry knows, with the nearest right one
    ├── OptionError         an option that a method, family or command does not take
    ├── TargetError         a target length that is not accepted
    ├── SourceError         an input text that cannot be used
    ├── DataError           a data set, file or row that cannot be used
    │   └── LongTargetError     a target that is longer than the recipe or the model allows
    ├── TokenizerError      a tokenizer that is missing, or has no end-of-sequence token
    ├── UnsupportedModelError   a model that no family declares, or a method cannot steer
    ├── ModelFilesError     saved or downloaded files that are missing, damaged or unsafe
    ├── RunError            a run folder that cannot be started, continued or written
    ├── ReportError         an evaluation or report that cannot be read, continued or compared
    └── JudgeError          a judge that cannot be reached
"""


class ImpatienceError(Exception):
    """Base of all errors that this package raises on purpose."""


class UnknownNameError(ImpatienceError, KeyError):
    """A name that no registry knows."""

    def __str__(self) -> str:
        """Return the message without the quotes that KeyError adds."""
        return str(self.args[0])


class OptionError(ImpatienceError, ValueError):
    """An option with a name or value that is not accepted."""


class TargetError(ImpatienceError, ValueError):
    """A target length that is not accepted."""


class SourceError(ImpatienceError, ValueError):
    """An input text that cannot be used."""


class DataError(ImpatienceError, ValueError):
    """A data set, a file of one, or a row of it that cannot be used."""


class LongTargetError(DataError):
    """A target that is longer than the recipe or the model allows."""


class TokenizerError(ImpatienceError, ValueError):
    """A tokenizer that is missing or lacks what length control needs."""


class UnsupportedModelError(ImpatienceError, TypeError):
    """A model that no family declares, or that the chosen method cannot steer."""


class ModelFilesError(ImpatienceError, OSError):
    """Files of a model that are missing, damaged or unsafe to load."""


class RunError(ImpatienceError, OSError):
    """A run folder that cannot be started, continued or written."""


class ReportError(ImpatienceError, ValueError):
    """An evaluation or report that cannot be read, continued or compared."""


class JudgeError(ImpatienceError, OSError):
    """A judge that cannot be reached, or refuses to answer."""
