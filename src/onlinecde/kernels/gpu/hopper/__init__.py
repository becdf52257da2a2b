"""What only GPUs of compute capability 9 run, in CUDA C++: thread-block clusters, which say in words which solves
they take. Everything else of this folder's parent runs in Triton.
"""
