"""The request log: lengths, tiers, times and names of shared beginnings of the requests served; never a word of them.

record.py   one line, and the head of a file
key.py      the key of the names, one per installation
files.py    append, rotate
writer.py   the thread that writes, and what it counts
reader.py   read it again

engine client --submitted, finished--> queue (bounded) --> thread: name the beginnings, encode, append
"""
