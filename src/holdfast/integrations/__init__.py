"""holdfast inside the trainers people already use: one module per trainer, imported only when needed.

Trainers read ahead of what they train on and save their own checkpoints. So each module does the same two things: it
acknowledges a batch once the model was trained on it, and it puts the stream state into the trainer's own checkpoint.
"""
