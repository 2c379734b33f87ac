"""A plan of work as units whose results are files, and the engines that do them: this process, Slurm or Ray."""
