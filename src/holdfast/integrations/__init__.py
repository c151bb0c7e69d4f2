"""holdfast inside the trainers people already use: one module per trainer, imported only when asked for.

Trainers read ahead of what they train on and save checkpoints of their own. So each module does the same two things: it
acknowledges a batch when the model was trained on it, and it puts the stream state into the trainer's own checkpoint.
"""
