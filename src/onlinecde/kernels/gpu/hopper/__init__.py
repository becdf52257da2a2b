"""What only GPUs of compute capability 9 run, in CUDA C++: thread-block clusters, and solves stage by stage.

Everything else of this folder's parent runs in Triton; each of the two says in words which solves it takes.
"""
