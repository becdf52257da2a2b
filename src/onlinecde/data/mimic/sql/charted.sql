-- charted: the rows of chartevents that mean something here. The one pass over the largest table.
create table charted as
select stay_id, itemid, charttime as time, valuenum as number,
       case when itemid in (select itemid from items where is_text) then value end as words
from mimic.chartevents
where itemid in (select itemid from items where source = 'chart')
  and stay_id in (select stay_id from stays);
