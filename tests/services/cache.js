// A service that keeps a session for each user, in a map.
const cache = new Map();

class Session {
  constructor(id) {
    this.id = id;
    this.name = 'user-' + id;
    this.tags = [id, id + 1];
  }
}

function login(id) {
  cache.set(id, new Session(id));
}

let id = 0;
setInterval(() => {
  for (let count = 0; count < 1000 && id < 1000000; count++) login(id++);
}, 2);
