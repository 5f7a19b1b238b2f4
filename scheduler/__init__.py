"""The scheduler: who runs next, where, and what happens when something dies."""
