"""All steps before the first write: the target, the facts, and the plan that follows from them."""
