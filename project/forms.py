"""What visitors of the demo site can say."""

from django import forms


class OrderForm(forms.Form):
    """An order for the kitchen."""

    dish = forms.CharField(max_length=60, initial="Fish soup")
    table = forms.IntegerField(min_value=1, max_value=99, initial=4)
