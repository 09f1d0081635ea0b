"""Flask, for gunicorn and gevent."""

import sys

if __name__ == "__main__":
    from gevent import monkey

    monkey.patch_all()

import flask

import work

app = flask.Flask(__name__)


@app.before_request
def before():
    work.native()


@app.route("/<int:number>")
def handler(number):
    return flask.render_template_string("{{ work.handle(number) }}", work=work, number=number)


@app.route("/function/<int:number>")
def function(number):
    return str(work.handle(number))


def served_by_gevent():
    import gevent
    from gevent import pywsgi

    def switching(environment, start):
        gevent.sleep(0)
        gevent.spawn(work.handle, 2).join()
        return app(environment, start)

    pywsgi.WSGIServer(("127.0.0.1", int(sys.argv[1])), switching, log=None).serve_forever()


if __name__ == "__main__":
    served_by_gevent()
