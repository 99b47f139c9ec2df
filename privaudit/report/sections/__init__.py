"""The sections of the page. The import list is the registry; ``order`` sorts it."""

from privaudit.report.maker import collect_sections
from privaudit.report.sections.attacks import attacks_run as attacks_run
from privaudit.report.sections.causes import causes_and_warnings as causes_and_warnings
from privaudit.report.sections.chart import values_per_image as values_per_image
from privaudit.report.sections.controls import controls_of_audit as controls_of_audit
from privaudit.report.sections.defenses import defenses_met as defenses_met
from privaudit.report.sections.first_screen import first_screen_of as first_screen_of
from privaudit.report.sections.gallery import picture_gallery as picture_gallery
from privaudit.report.sections.inventory import model_inventory as model_inventory
from privaudit.report.sections.ladder import picture_ladder as picture_ladder
from privaudit.report.sections.limitations import limitations_of as limitations_of
from privaudit.report.sections.limits import limits_used as limits_used
from privaudit.report.sections.masks import mask_recovery as mask_recovery
from privaudit.report.sections.per_image import table_per_image as table_per_image
from privaudit.report.sections.priors import priors_used as priors_used
from privaudit.report.sections.provenance import where_from as where_from
from privaudit.report.sections.searches import how_searches_went as how_searches_went
from privaudit.report.sections.skipped import skipped_inputs as skipped_inputs
from privaudit.report.sections.split import where_it_is_cut as where_it_is_cut
from privaudit.report.sections.success import success_rates as success_rates
from privaudit.report.sections.threat_model import who_attacks as who_attacks
from privaudit.report.sections.tokens import tokens_found as tokens_found

SECTIONS = collect_sections(globals())
