"""A Django project as small as can be: one model over the protected table."""

from __future__ import annotations

import django
from django.conf import settings

settings.configure(DATABASES={}, INSTALLED_APPS=[], USE_TZ=True)
django.setup()

from django.db import models  # noqa: E402 (models need the settings)


class Charge(models.Model):
    """A charge to an organisation."""

    charge_id = models.BigAutoField(primary_key=True)
    org_id = models.TextField()
    amount = models.IntegerField()

    class Meta:
        app_label = "charges"
        db_table = "charge"
        managed = False
