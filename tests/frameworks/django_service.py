"""Django, for gunicorn: a class-based view, a middleware and a template."""

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.template import Context, Template
from django.urls import path
from django.views import View

import work

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="none",
    MIDDLEWARE=["django.middleware.common.CommonMiddleware", "django_service.measured"],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
)


def measured(get_response):
    def middleware(request):
        work.native()
        return get_response(request)

    return middleware


class Page(View):
    def get(self, request, number):
        called = Template("{% for x in values %}{{ function }}{% endfor %}")
        return HttpResponse(called.render(Context({"values": [1], "function": lambda: work.handle(number)})))


def function(request, number):
    return HttpResponse(str(work.handle(number)))


urlpatterns = [path("<int:number>", Page.as_view()), path("function/<int:number>", function)]
application = get_wsgi_application()
