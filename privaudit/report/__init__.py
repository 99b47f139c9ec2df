"""6 result → page and files. Reads the record and its pictures, nothing else."""

from privaudit.report.page import render_html as render_html
from privaudit.report.save import write as write
