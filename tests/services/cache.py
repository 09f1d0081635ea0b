"""A service that keeps a session for each user, in a dictionary."""

import time


class Session:
    def __init__(self, number):
        self.number = number
        self.name = f"user-{number}"
        self.tags = [number, number + 1]


cache = {}


def login(number):
    cache[number] = Session(number)


number = 0
while True:
    if number < 800_000:
        login(number)
        number += 1
    else:
        time.sleep(0.05)
    if number % 200 == 0:
        time.sleep(0.002)
