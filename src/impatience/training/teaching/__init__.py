"""``impatience teach``: give an instruct model length control from texts that it writes itself.

The model invents requests of users and writes documents, answers them and instructions over documents, and learns to
land its own answers: no data set is needed. Then it obeys a target for any instruction. Steps:

1. ``author``  writes turns, documents and answers, and says how far it believes an answer.
2. ``filters`` leave out answers that are cut, break off, loop, copy, are marked up, or say what their text does not.
   ``human``   adds targets by people that pass them.
3. ``asks``    makes rows: prompts that name the real length of their answer, or none; and first sentences of answers.
4. ``recipe``  trains adapters and the signal on them. The signal enters at layer 2 and later, so that runtimes
   which add vectors between layers can run the model, too.
"""

from impatience.training.teaching.options import TeachOptions
from impatience.training.teaching.run import teach

__all__ = ["TeachOptions", "teach"]
