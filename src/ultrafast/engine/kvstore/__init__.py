"""KV outside the device, as bytes. What is kept, moved and dropped is decided in `kv` and `sched`; here it happens.

arena.py      host memory
run_file.py   what a file on disk looks like, and whether it may be trusted
disk.py       the folder, and the one thread that reads and writes it
carrier.py    carries out the operations of a plan
model_key.py  what KV depends on
file_hash.py  the content of the model file
"""
