"""What the HTML reports of synthesis and evaluation share: the page's style, its templates and inline charts.

Needs the extra ``report``; nothing else in `deltamem` imports it.
"""
