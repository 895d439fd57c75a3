"""Addresses of the demo site."""

from django.contrib import admin
from django.urls import path

from project import orders, views

urlpatterns = [
    path("", views.index, name="index"),
    path("report/", views.report, name="report"),
    path("v1/chat/completions", views.chat_completions, name="chat-completions"),
    path("ticker/", views.ticker, name="ticker"),
    path("orders/", orders.board, name="orders"),
    path("orders/place/", orders.place, name="place-order"),
    path("orders/events/", orders.events, name="order-events"),
    path("admin/", admin.site.urls),
]
