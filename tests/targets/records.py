# Builds, searches, compresses and stores records in two threads for two minutes: a target of `cargo xtask bench unwind`.
import collections, datetime, decimal, hashlib, json, random, re, sqlite3, threading, time, zlib

WORD = re.compile(r"(\w+)[,.;]?\s*")

class Record:
    def __init__(self, number):
        self.number = number
        self.name = "record-%d" % number
        self.tags = [random.choice(["red", "green", "blue"]) for _ in range(5)]
        self.price = decimal.Decimal(number) / 7
        self.when = datetime.datetime(2024, 1, 1) + datetime.timedelta(minutes=number)

    def as_dict(self):
        return {"number": self.number, "name": self.name, "tags": self.tags, "price": str(self.price),
                "when": self.when.isoformat()}

def work(database, rounds):
    records = [Record(number) for number in range(200)]
    text = json.dumps([record.as_dict() for record in records], indent=1)
    words = collections.Counter(match.group(1) for match in WORD.finditer(text))
    database.executemany("insert into words values (?, ?)", words.items())
    database.execute("delete from words where rowid % 10 > 0")
    packed = zlib.compress(text.encode())
    again = sorted(json.loads(zlib.decompress(packed)), key=lambda entry: entry["name"])
    return hashlib.sha256("".join(entry["when"] for entry in again).encode()).hexdigest()

def run():
    database = sqlite3.connect(":memory:")
    database.execute("create table words (word text, count integer)")
    end = time.monotonic() + 120
    rounds = 0
    while time.monotonic() < end:
        work(database, rounds)
        rounds += 1

threading.Thread(target=run, daemon=True).start()
run()
